"""Commands of users with elastic jobs: submitting them, and their checkpoints."""
