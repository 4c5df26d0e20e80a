"""`python -m tianzhou`: the command, where the script is not on the path."""

from tianzhou.cmd.main import main

if __name__ == "__main__":
    main()
