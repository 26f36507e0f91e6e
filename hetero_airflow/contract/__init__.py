"""Formats that the scheduler, the task supervisor and the operators share: they run in different processes.

Add here what one of them writes and another one reads. Nothing here runs by itself.
"""
