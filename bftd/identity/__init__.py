"""Who calls the API, and what he may do: by the kernel on this host, by munge from others."""
