// SPDX-License-Identifier: Apache-2.0
// The reader of torch's flight records, with records of torch 2.15 (flight_dumps/record.py), and
// the lines about the records of all ranks.
#include "launcher/hang/flight_record.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "launcher/hang/flight_analysis.h"
#include "launcher/report/folded_ranks.h"

namespace ivy {
namespace {

std::string recorded_file(const std::string& name) {
  std::ifstream file(std::string(IVY_FLIGHT_DUMPS) + "/" + name, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// Returns the recorded answers of torch's worker server for that backend.
std::vector<RankFlight> served(const std::string& name, const std::string& backend) {
  std::vector<RankFlight> flights;
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    Result<FlightRecord> record =
        read_flight_record(recorded_file(name + "-" + std::to_string(rank) + ".json"), backend);
    EXPECT_TRUE(record.ok()) << record.error().message;
    if (record.ok()) flights.push_back({rank, std::move(*record)});
  }
  return flights;
}

std::int64_t last_created(const std::vector<RankFlight>& flights) {
  std::int64_t newest = 0;
  for (const RankFlight& flight : flights)
    for (const FlightEntry& entry : flight.record.entries)
      newest = std::max(newest, entry.created_unix_ns);
  return newest;
}

TEST(FlightRecord, ReadsTheDumpsOfTorch) {
  const Result<FlightRecord> record = read_flight_record(recorded_file("absent-0.json"), "gloo");
  ASSERT_TRUE(record.ok()) << record.error().message;
  EXPECT_EQ(record->version, "2.10");
  ASSERT_EQ(record->entries.size(), 5u);
  const FlightEntry& last = record->entries.back();
  EXPECT_EQ(last.group, "0");
  EXPECT_EQ(last.group_text, "default_pg");
  EXPECT_EQ(last.sequence, 4);
  EXPECT_EQ(last.backend, "gloo");
  EXPECT_EQ(last.operation, "all_reduce");
  EXPECT_EQ(last.sizes, "[[1000]]");
  EXPECT_EQ(last.types, "Float");
  EXPECT_FALSE(last.is_over);
  EXPECT_TRUE(record->entries.front().is_over);
}

TEST(FlightRecord, SurvivesEveryTruncationAndEveryChangedByte) {
  std::string whole = recorded_file("absent-0.json");
  whole.pop_back();  // The newline at the end of the file.
  ASSERT_GT(whole.size(), 1000u);
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_FALSE(read_flight_record(whole.substr(0, length), "gloo").ok()) << length;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string bent = whole;
    bent[at] = static_cast<char>(bent[at] ^ 0x15);
    const Result<FlightRecord> record = read_flight_record(bent, "gloo");
    if (record.ok()) {
      EXPECT_LE(record->entries.size(), 5u);
    }
  }
}

TEST(FlightRecord, RejectsInvalidOrOversizedRecords) {
  const std::string deep = std::string(40, '[') + std::string(40, ']');
  EXPECT_EQ(read_flight_record(deep, "gloo").error().code, Code::kDataLoss);
  for (const char* bytes : {"null", "[]", "{}", R"({"version": 1, "entries": 5})"})
    EXPECT_FALSE(read_flight_record(bytes, "gloo").ok()) << bytes;
  EXPECT_EQ(read_flight_record(std::string(kMaxFlightBytes + 1, ' '), "gloo").error().message,
            "a flight record of 8388609 bytes");
  std::string many = R"({"version":"2.10","entries":[0)";
  for (std::size_t i = 0; i < kMaxFlightEntries; ++i) many += ",0";
  EXPECT_FALSE(read_flight_record(many + "]}", "gloo").ok());
}

// ---- All ranks together --------------------------------------------------------------------

TEST(FlightLines, NamesTheRankThatDidNotEnter) {
  const std::vector<RankFlight> flights = served("absent", "gloo");
  const std::int64_t now_ns = last_created(flights) + 30'000'000'000;
  EXPECT_EQ(flight_lines(flights, 3, now_ns),
            std::vector<std::string>{
                "rank 2 did not enter all_reduce #4 of \"default_pg\" (last entered all_reduce #3 "
                "30 s ago); ranks 0-1 wait in it ([[1000]] Float) for 30 s"});
}

TEST(WaitsForExited, NamesTheExitedRankThatOthersWaitFor) {
  std::vector<RankFlight> flights = served("absent", "gloo");
  const std::string wait = "ranks 0-1 wait for rank 2 in all_reduce #4 of \"default_pg\"";
  EXPECT_EQ(waits_for_exited(flights, {2}), std::vector<std::string>{wait});
  EXPECT_TRUE(waits_for_exited(flights, {}).empty()) << "rank 2 may still come";
  flights.pop_back();
  EXPECT_EQ(waits_for_exited(flights, {2}), std::vector<std::string>{wait})
      << "the record is lost with the process";
}

TEST(FlightLines, NamesBothSidesOfAMismatch) {
  const std::vector<RankFlight> flights = served("differ", "gloo");
  EXPECT_EQ(flight_lines(flights, 3, last_created(flights)),
            std::vector<std::string>{
                "ranks differ at collective #4 of \"default_pg\": ranks 0-1 are in all_reduce "
                "([[1000]] Float); rank 2 is in broadcast ([[1000]] Float)"});
}

TEST(FlightLines, PrintsTheSourceLineOfTheScript) {
  std::vector<RankFlight> flights = served("absent", "gloo");
  flights[0].record.entries.back().source_line = "train.py:41";
  EXPECT_EQ(flight_lines(flights, 3, last_created(flights) + 30'000'000'000),
            std::vector<std::string>{
                "rank 2 did not enter all_reduce #4 of \"default_pg\" (last entered all_reduce #3 "
                "30 s ago); ranks 0-1 wait in it ([[1000]] Float, at train.py:41) for 30 s"});
  flights = served("sizes", "gloo");
  EXPECT_EQ(flight_lines(flights, 3, last_created(flights)),
            std::vector<std::string>{
                "ranks differ at collective #4 of \"default_pg\": rank 0 is in broadcast ([[1000]] "
                "Float); rank 1 is in broadcast ([[999]] Float)"});
}

// Stand-ins made from torch's sources; no GPU wrote them.
TEST(FlightLines, HandlesNcclRecordsWithoutFinishedEntries) {
  std::vector<RankFlight> flights = served("nccl2-standin", "nccl2");
  const std::int64_t now_ns = last_created(flights) + 30'000'000'000;
  EXPECT_EQ(flight_lines(flights, 3, now_ns),
            std::vector<std::string>{
                "rank 2 did not enter all_reduce #4 of \"default_pg\" (last entered #3); ranks 0-1 "
                "wait in it ([[1000]] Float) for 30 s"});
  // A rank that has finished the operation in which the others wait is not blamed.
  flights[2].record.last_of_default["nccl2"] = 4;
  EXPECT_EQ(flight_lines(flights, 3, now_ns),
            std::vector<std::string>{"ranks 0-1 are in all_reduce #4 of \"default_pg\" ([[1000]] "
                                     "Float) for 30 s, and all ranks have entered it"});
}

TEST(FlightLines, UsesTheMemberListOfOlderTorch) {
  const std::vector<RankFlight> flights = served("nccl-standin", "nccl");
  EXPECT_EQ(
      flight_lines(flights, 3, last_created(flights)),
      std::vector<std::string>{"rank 2 did not enter _all_gather_base #1 of \"tensor\"; rank 1 "
                               "waits in it ([[8]] Float) for 0 s"});
}

TEST(FlightLines, CountBackendsOfOneGroupSeparately) {
  std::vector<RankFlight> flights = served("absent", "gloo");
  for (RankFlight& flight : served("nccl2-standin", "nccl2"))
    merge(flights[flight.rank].record, std::move(flight.record));
  EXPECT_EQ(flight_lines(flights, 3, 0).size(), 2u);
  // Known entries are not added again.
  const std::size_t before = flights[0].record.entries.size();
  merge(flights[0].record, served("absent", "gloo")[0].record);
  EXPECT_EQ(flights[0].record.entries.size(), before);
}

TEST(FlightLines, PrintsNothingIfNoRankWaits) {
  EXPECT_TRUE(flight_lines(served("well", "gloo"), 3, 0).empty());
  EXPECT_TRUE(flight_lines({}, 3, 0).empty());
}

FlightEntry entry(std::int64_t sequence, const std::string& operation, const std::string& sizes,
                  bool is_over) {
  FlightEntry made;
  made.group = "0";
  made.group_text = "default_pg";
  made.sequence = sequence;
  made.operation = operation;
  made.sizes = sizes;
  made.is_over = is_over;
  made.created_unix_ns = 1'000'000'000;
  return made;
}

TEST(FlightLines, NameTheRankThatTheOthersWaitFor) {
  const FlightEntry done = entry(7, "all_reduce", "[[8]]", true);
  const FlightEntry waits = entry(8, "all_reduce", "[[8]]", false);
  const FlightEntry longer = entry(8, "all_reduce", "[[9]]", false);
  const FlightEntry ahead = entry(9, "broadcast", "[[8]]", false);
  const FlightEntry gather = entry(8, "gather", "[[8]]", false);
  const FlightEntry gather_root = entry(8, "gather", "[[8], [8]]", false);
  FlightEntry other_group = entry(3, "barrier", "[]", false);
  other_group.group = "5";
  other_group.group_text = "pipeline";
  FlightEntry send = entry(2, "send 0->1", "[[4]]", false);
  send.is_point_to_point = true;
  FlightEntry without_time = done;
  without_time.created_unix_ns = std::numeric_limits<std::int64_t>::min();
  struct Case {
    const char* name;
    std::vector<std::vector<FlightEntry>> ranks;
    std::uint32_t world;
    std::vector<std::string> lines;
  };
  const Case cases[] = {
      {"a rank that has entered nothing at all",
       {{done, waits}, {}},
       2,
       {"rank 1 did not enter all_reduce #8 of \"default_pg\"; rank 0 waits in it ([[8]]) for 4 "
        "s"}},
      {"a time that no clock shows",
       {{done, waits}, {without_time}},
       2,
       {"rank 1 did not enter all_reduce #8 of \"default_pg\" (last entered all_reduce #7); rank 0 "
        "waits in it ([[8]]) for 4 s"}},
      {"the oldest that is not over counts, not what was queued behind it",
       {{waits, ahead}, {waits, ahead}, {done}},
       3,
       {"rank 2 did not enter all_reduce #8 of \"default_pg\" (last entered all_reduce #7 4 s "
        "ago); "
        "ranks 0-1 wait in it ([[8]]) for 4 s"}},
      {"a rank whose buffer has forgotten it is no one who did not enter",
       {{waits}, {waits}, {ahead}},
       3,
       {"ranks 0-1 are in all_reduce #8 of \"default_pg\" ([[8]]) for 4 s, and all ranks have "
        "entered it"}},
      {"other sizes",
       {{waits}, {longer}},
       2,
       {"ranks differ at collective #8 of \"default_pg\": rank 0 is in all_reduce ([[8]]); rank 1 "
        "is "
        "in all_reduce ([[9]])"}},
      {"sizes that differ by right",
       {{gather}, {gather_root}},
       2,
       {"ranks 0-1 are in gather #8 of \"default_pg\" ([[8]]) for 4 s, and all ranks have "
        "entered it"}},
      {"a group of which others know nothing",
       {{done, other_group}, {done}},
       2,
       {"rank 0 is in barrier #3 of \"pipeline\" ([]) for 4 s, and all ranks have entered it"}},
      {"a record that is missing",
       {{waits}, {done}},
       4,
       {"rank 1 did not enter all_reduce #8 of \"default_pg\" (last entered all_reduce #7 4 s "
        "ago); "
        "rank 0 waits in it ([[8]]) for 4 s",
        "no flight record of ranks 2-3"}},
      {"a message", {{send}, {}}, 2, {"rank 0 is in send 0->1 of \"default_pg\" ([[4]]) for 4 s"}},
  };
  for (const Case& one : cases) {
    std::vector<RankFlight> flights;
    for (std::uint32_t rank = 0; rank < one.ranks.size(); ++rank)
      flights.push_back({rank, {.version = "2.10", .entries = one.ranks[rank]}});
    EXPECT_EQ(flight_lines(flights, one.world, 5'000'000'000), one.lines) << one.name;
  }
}

TEST(FlightLines, MakesNoClaimAboutRanksWithoutARecord) {
  const FlightEntry waits = entry(8, "all_reduce", "[[8]]", false);
  const std::vector<RankFlight> flights = {{0, {.version = "2.10", .entries = {waits}}},
                                           {1, {.version = "2.10", .entries = {waits}}}};
  EXPECT_EQ(
      flight_lines(flights, 3, 5'000'000'000),
      (std::vector<std::string>{
          "ranks 0-1 are in all_reduce #8 of \"default_pg\" ([[8]]) for 4 s, and all ranks with "
          "a flight record have entered it",
          "no flight record of rank 2"}));
}

TEST(FoldedRanks, FoldsConsecutiveRanks) {
  EXPECT_EQ(folded_ranks<int>({}), "");
  EXPECT_EQ(folded_ranks<int>({3}), "3");
  EXPECT_EQ(folded_ranks<int>({5, 0, 2, 1}), "0-2,5");
}

}  // namespace
}  // namespace ivy
