//! Tests of the mask algorithm.
