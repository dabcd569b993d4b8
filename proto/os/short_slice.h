// SPDX-License-Identifier: Apache-2.0
// Requests short time slices from the kernel.
#pragma once

namespace ivy {

// For a process that only forwards data for which others wait. With a short slice it runs as soon
// as it is woken, even if all cores are busy, and never for long. Its children start with the
// default slice. Needs Linux 6.12; older kernels ignore it.
void prefer_short_slices();

}  // namespace ivy
