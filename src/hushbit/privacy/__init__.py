"""What is guaranteed, what has been spent, and how to check it."""
