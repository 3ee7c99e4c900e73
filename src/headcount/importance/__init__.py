"""What each unit is worth: one number per unit, by many criteria."""
