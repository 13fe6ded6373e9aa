"""Bytes and tasks: what moves the method's arrays between disks, processes and machines.

``storage`` alone knows Zarr, ``execute`` and ``clusters`` alone know Dask, ``ingest`` alone knows Arrow.
Imports ``numerics`` and ``utils``; knows nothing of estimators.
"""
