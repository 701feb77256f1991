"""The command line: a module for each command, imported when it is called, so that none waits for what others need."""
