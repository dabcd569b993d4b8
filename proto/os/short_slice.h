// Asks the kernel for short time slices.
#pragma once

namespace ivy {

// For a process that only passes on what others wait for: with a short slice it runs at once when
// it is woken, also on a machine whose cores are all busy, and never for long. Its children start
// with the usual slice. Linux 6.12 and newer; older ones do nothing.
void prefer_short_slices();

}  // namespace ivy
