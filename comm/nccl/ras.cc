// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/ras.h"

#include <sstream>

#include "proto/os/clock.h"
#include "proto/wire/ras.h"

namespace ivy::comm::nccl {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds kAnswerPoll{50};
// Limits a report, which is part of a worker's output.
constexpr std::size_t kLinesMax = 60;
constexpr std::size_t kLineMax = 200;

}  // namespace

std::string query_ras(std::string_view address, std::chrono::milliseconds timeout,
                      FailureSource& source) {
  RasQuestion question(address, steady_now() + timeout);
  while (!question.advance(steady_now())) {
    if (source.find_failure()) return "";
    question.await(kAnswerPoll);
  }
  return question.answer();
}

std::string report_of_ras(std::string_view answer, std::string_view communicator) {
  std::string report = "ivycomm: communicator " + std::string(communicator) +
                       " makes no progress; NCCL's health service (RAS) says:\n";
  std::istringstream lines{std::string(answer)};
  std::size_t line_count = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find_first_not_of(" =") == std::string::npos) continue;
    if (line_count++ == kLinesMax) return report + "  ... (ncclras -v shows everything)\n";
    report += "  " + line.substr(0, kLineMax) + "\n";
  }
  return report;
}

}  // namespace ivy::comm::nccl
