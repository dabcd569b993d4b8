// SPDX-License-Identifier: Apache-2.0
// PMI-1's encoding: lines "cmd=NAME name=value ...\n", and "mcmd=NAME\nname=value\n...endcmd\n" for
// the only command that has several lines (spawn). Pure; thread: any.
//
// A line has at most kMaxPmiLine bytes, a command of several lines kMaxPmiSpawn. Six digits or
// blanks in place of "cmd=" are PMI-2's framing, which is not supported.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "proto/contract/status.h"

namespace ivy::store {

// MPICH's own limit is 1024; a message of MPI_Abort may be longer.
inline constexpr std::size_t kMaxPmiLine = 8u << 10;
inline constexpr std::size_t kMaxPmiSpawn = 64u << 10;

struct PmiRequest {
  std::string command;
  bool is_multiline = false;
  std::map<std::string, std::string, std::less<>> values;

  // Returns an empty string if the request has no such value.
  std::string_view value(std::string_view name) const;
  // Returns nothing if the request has no such value, or if it is not a number.
  std::optional<int> number(std::string_view name) const;
};

// Parses "cmd=put key=k value=the rest of the line". Values of "value", "message" and "error_msg"
// extend to the end of the line, all others to the next blank. Fails with InvalidArgument if there
// is no command, or if the line contains a NUL byte.
Result<PmiRequest> parse_pmi_line(std::string_view line);

// Splits a stream of bytes into requests.
class PmiReader {
 public:
  void add(std::string_view bytes) { bytes_.append(bytes); }
  // Returns the next line without its end, or nothing if no line is complete. Fails with
  // InvalidArgument if a line is too long.
  Result<std::optional<std::string>> next_line();
  // Returns the next request, or nothing if none is complete. Fails with FailedPrecondition if the
  // peer uses PMI-2, and with InvalidArgument if it uses neither version; nothing more can be read
  // then.
  Result<std::optional<PmiRequest>> next();

 private:
  Result<std::optional<PmiRequest>> add_to_spawn(const std::string& line);

  std::string bytes_;
  std::optional<PmiRequest> spawn_;  // A spawn command whose end has not arrived yet.
  std::size_t spawn_bytes_ = 0;
};

}  // namespace ivy::store
