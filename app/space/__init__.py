"""The files of a Hugging Face Space that serves the explorer."""
