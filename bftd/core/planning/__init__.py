"""From the pool and the trainers to leases granted and revoked."""
