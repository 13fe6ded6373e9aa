"""Clusters, which are described in a file or an option, opened, watched and closed.

They are local processes, jobs of batch systems, Kubernetes pods, or the workers of an existing scheduler.
Provides executors. Imports ``execute`` and ``utils``.
"""
