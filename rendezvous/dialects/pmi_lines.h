// SPDX-License-Identifier: Apache-2.0
// PMI-1 as bytes: lines "cmd=NAME name=value ...\n", and "mcmd=NAME\nname=value\n...endcmd\n" for
// the one command that has several lines (spawn). Pure; thread: any.
//
// Bounds: a line has at most kMaxPmiLine bytes, a command of several lines kMaxPmiSpawn. Six
// digits or blanks in place of "cmd=" are PMI-2's framing, which is not served.
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

  // Empty when it is not there.
  std::string_view value(std::string_view name) const;
  std::optional<int> number(std::string_view name) const;
};

// "cmd=put key=k value=the rest of the line". Values of "value", "message" and "error_msg" go to
// the end of the line, all others to the next blank. Errors (InvalidArgument): no command, a NUL
// byte.
Result<PmiRequest> parse_pmi_line(std::string_view line);

// Cuts a stream into requests.
class PmiReader {
 public:
  void add(std::string_view bytes) { bytes_.append(bytes); }
  // The next line without its end; nothing when none is complete. Errors (InvalidArgument): a line
  // without end.
  Result<std::optional<std::string>> next_line();
  // The next request. Errors (InvalidArgument): not PMI-1, and after that nothing more is read.
  Result<std::optional<PmiRequest>> next();

 private:
  Result<std::optional<PmiRequest>> add_to_spawn(const std::string& line);

  std::string bytes_;
  std::optional<PmiRequest> spawn_;  // A command of several lines, until its end.
  std::size_t spawn_bytes_ = 0;
};

}  // namespace ivy::store
