"""The commands of `leasehold`, by what they are about. Heavy libraries load inside them."""
