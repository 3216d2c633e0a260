"""The process on a pool node that keeps torch imported and forks workers; one a pilot, in the user's interpreter."""
