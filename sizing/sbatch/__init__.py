"""The #SBATCH lines of a plan, and the script that they go into."""
