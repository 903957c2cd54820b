"""The fleet on kind: one hub and two members as containers, for machines with Docker.

NOT EXERCISED where there is no Docker: the tests check what is rendered here, nothing has been run against kind by
them. The local fleet (hack/fleet) is the one under test.
"""
