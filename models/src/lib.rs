//! White-box models.
