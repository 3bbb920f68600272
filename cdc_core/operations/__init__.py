"""What Lockstep does for a user. The command line and Airflow are two faces of the same calls.

Each operation is a function of one `OpenPipeline`, says how far it is to that one's `Progress`, and returns its report
as a frozen value. It neither prints nor exits; what it refuses, it raises.
"""
