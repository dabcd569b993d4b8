// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/other_launchers.h"

#include <gtest/gtest.h>

#include "launcher/options/option_table.h"
#include "proto/contract/text.h"

namespace ivy {
namespace {

TEST(OtherLaunchers, KnowsEveryFlag) {
  for (const OtherLauncher& launcher : other_launchers()) {
    for (const std::string_view flag : words_of(launcher.flags)) {
      const bool is_known =
          find_option(flag) || (flag[1] != '-' && find_option("-" + std::string(flag)));
      EXPECT_TRUE(is_known) << launcher.name << " " << flag;
    }
  }
}

TEST(OtherLaunchers, ExplainsEachFlagOnThePage) {
  const std::string page = coming_from_page();
  for (const std::string_view line :
       {"\n## accelerate\n", "- `--num-processes`: `--num-proc N`: ", "- `--nnodes`: the same: ",
        "- `--rdzv-conf`: ignored: ", "- `--include`: the same: ", "- `--mca`: rejected: "})
    EXPECT_NE(page.find(line), std::string::npos) << line;
}

}  // namespace
}  // namespace ivy
