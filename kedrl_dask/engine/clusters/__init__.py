"""Clusters: described in a file or an option, opened, watched, and closed.

Local processes, jobs of batch systems, Kubernetes, and schedulers that exist already. Gives executors.
Imports ``execute`` and ``utils``.
"""
