"""Switches an application from the sources of a pipeline to its target, and back. In the order of a cutover:

opening, work     what it works with: the target, the way back, the pairs of tables
cutover_states    the states of a cutover, and every move between them
machine           the steps, each of which a kill may interrupt
moving            the right to move a cutover, and its moves
preparing         what must be true before it begins: readiness, blockers, noticed, valid_evidence, unstaged
way_back, reverse the pipeline that carries the application's writes back
chase             runs and comparisons, by catching_up and proof, while the application writes
hold              the time without writes: clock, locks, catching_up, proof
hooks             the commands by which the application is stopped and switched
old_log           whether old tables took writes before a person said that the application is switched
undoing           frees what a cutover has stopped, fenced and gated

planning says beforehand what one would do, and cutover_report how far it is.
"""
