"""In front of the real one in a child process's PYTHONPATH: importing and drawing takes a third of a short run."""

raise ImportError("runs of these tests draw no pictures")
