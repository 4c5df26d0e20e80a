"""Who may do what. Today: the proof that a request comes from the cluster."""
