"""Access control. Today: the check that a request is signed with the cluster's credentials."""
