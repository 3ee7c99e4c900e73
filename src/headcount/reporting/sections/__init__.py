"""The sections of a report, one module for each topic, and the groups that they stand in. No torch."""

# The groups of sections of a model, in the order of a story. A section of no group stands in the last one.
GROUPS = {
    "What it came to": (
        *("tradeoff", "guarantee", "structure", "recovered", "lottery", "learned"),
        *("speed", "budget", "tuned", "removed", "curve", "over", "survivors", "overlap", "agreement"),
    ),
    "Which units matter": (
        *("effects", "circuit", "patching", "predictions", "ranking", "spread", "one-head", "transfer", "units"),
    ),
    "What heads do": ("roles", "by-name", "survival", "relations", "attribution", "weights"),
    "How it was made": ("gates", "training", "search", "networks", "all-runs"),
}
# Sections that are unfolded, the first of each; of a group that has none of them, the first one.
UNFOLDED = {"tradeoff", "guarantee", "structure", "recovered", "lottery", "learned", "effects", "patching", "roles"}
UNFOLDED |= {"circuit", "attribution", "weights"}
