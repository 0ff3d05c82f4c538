//! Handles: small values that name an object, and know when it is gone.
