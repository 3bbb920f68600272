"""Switches an application from the sources of a pipeline to its target, and back.

states    the states of a cutover, and every move between them
machine   the steps, each of which a kill may interrupt
reverse   the pipeline that carries the application's writes back
locks     keeps writes out of tables for as long as a session lives
gates     triggers by which writes to tables that were left fail
proof     compares the keys that changed since a full verification
hooks     the commands and functions by which the application is stopped and switched
old_log   whether old tables took writes before a person said that the application is switched
"""
