"""Reinforcement learning with memory."""
