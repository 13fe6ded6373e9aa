"""What every floor may use and what knows nothing of the method.

Checks of what callers give, the exceptions and warnings of the package, working memory, progress bars, the
end of a process, and how objects show themselves in a notebook. Imports nothing else of the package.
"""
