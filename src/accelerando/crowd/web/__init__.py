"""The web application of the crowd service."""

from accelerando.crowd.web.app import create_app as create_app
