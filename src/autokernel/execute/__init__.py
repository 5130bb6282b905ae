"""Where judging happens. Today: this process's own device."""
