"""Starting a job's processes, and watching them. What they do together is in `pet.parallel`."""
