"""Evaluations that run by themselves: files that describe them, schedules, and a look at the machine.

Imports ``comparison``, ``report``, ``estimator`` and what lies below.
"""
