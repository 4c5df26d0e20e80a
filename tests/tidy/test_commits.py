"""Commit messages have the form that CONTRIBUTING.md asks for."""

import re
import subprocess

import pytest
from sources import ROOT

SUBJECT_MAX = 60
BASE = "593e417"
"""The last commit before this form was agreed on. History is not rewritten."""
SUBJECT = re.compile(r"[a-z0-9_/., -]+: [^ ]")


def messages() -> list[str]:
    listed = subprocess.run(
        ["git", "log", f"{BASE}..HEAD", "--no-merges", "--format=%B%x00"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listed.returncode:
        pytest.skip("not a git clone, or a shallow one")
    return [message.strip() for message in listed.stdout.split("\0") if message.strip()]


def test_commit_subjects_have_an_area_and_an_imperative() -> None:
    for message in messages():
        subject, _, rest = message.partition("\n")
        assert len(subject) <= SUBJECT_MAX, f"{subject!r} has {len(subject)} characters"
        assert SUBJECT.match(subject), f"{subject!r} must have the form 'area: imperative'"
        assert not subject.endswith("."), subject
        assert not re.search(r"\b(wip|fixup|squash)\b", subject.lower()), subject
        assert not rest or rest.startswith("\n"), f"no empty line below {subject!r}"
