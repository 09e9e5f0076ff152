"""Set-up of a fleet: services and jobs from models and a cluster, and the scale of the demand."""
