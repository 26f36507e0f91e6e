"""What devices and tasks used, in tables: the times in which devices were there, and sums of days.

Leases have their own rows. So only the rare changes of devices are written beside them: when a worker comes, is lost,
reports other devices, or when a hold begins or ends. Placing and ending a lease costs nothing more. The sums are made
when `prune` deletes the rows, so they outlive them, and each second is counted once.

Rejected: sums that each transaction keeps. They cost two more statements for each lease, and a device that is on hold
while it is leased changes what the free part counts as, so each change of one needs the state of the other.
"""
