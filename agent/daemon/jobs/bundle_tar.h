// SPDX-License-Identifier: Apache-2.0
// Unpacks the tar of a bundle: regular files with plain names in one directory. Fails on any other
// entry (link, directory, device, path), so that nothing is ever written outside the target
// directory. Thread: any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "proto/contract/status.h"

namespace ivy {

inline constexpr std::size_t kMaxBundleFiles = 64;
inline constexpr std::uint64_t kMaxBundleBytes = 256u << 20;

// Writes the files of an archive into an existing directory, 0700 or 0600. Fails with
// ResourceExhausted if the disk is full, and with DataLoss if the archive is invalid.
Result<void> unpack_bundle(int tar_fd, const std::string& directory);

}  // namespace ivy
