"""Sending: admission, batches, responses, replies to requests, and messages that consumers send
back.
"""
