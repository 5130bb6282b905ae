"""The command line: one short function a command, no logic."""
