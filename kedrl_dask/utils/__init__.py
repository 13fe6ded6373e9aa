"""Tools for every folder that do not depend on the method.

Names of array types, checks of arguments, exceptions and warnings, working memory, progress bars, the
interruption of a process, and the display of objects in notebooks. Imports nothing else of the package.
"""
