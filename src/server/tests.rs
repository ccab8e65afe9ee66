//! Tests of the server loop.
