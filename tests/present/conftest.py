"""Loads all questions, which declare the words that the tests here read."""

import importlib
import pkgutil

import tracekit.analysis
import tracekit.runs._comparisons

for each in pkgutil.walk_packages(tracekit.analysis.__path__, "tracekit.analysis."):
    importlib.import_module(each.name)
