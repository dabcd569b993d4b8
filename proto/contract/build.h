// SPDX-License-Identifier: Apache-2.0
// Identifies this build. Launcher and supervisor are always the same build: the launcher sends its
// own supervisor.
#pragma once

#include <string_view>

namespace ivy {

// Returns 16 hexadecimal digits: a hash of the sources of proto/, agent/node/ and agent/devices/,
// computed by the build.
std::string_view build_name();

// Returns the version number, such as "0.1.0".
std::string_view version();

}  // namespace ivy
