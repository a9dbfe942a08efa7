"""Columns in memory and in Arrow: values on the way in and back, structs, policies for nulls and lists."""
