"""The sensors of a stream: each tick reads, decides, and says in one line what and why."""
