// SPDX-License-Identifier: Apache-2.0
#include "launcher/report/diagnostic.h"

#include <gtest/gtest.h>

#include "launcher/report/missing_module.h"

namespace ivy {
namespace {

TEST(DiagnosticTest, ShowsSummaryLocationCauseAndFix) {
  Diagnostic diagnostic;
  diagnostic.id = "IVY-H003";
  diagnostic.what = "2 of 32 hosts did not answer in 30 s";
  diagnostic.where = "node[07,19], ssh connect";
  diagnostic.cause = "Permission denied (publickey)\nsecond line\n";
  diagnostic.fix = "ssh -o BatchMode=yes node07 true\n--nnodes 30";
  EXPECT_EQ(render(diagnostic),
            "ivyrun: error[IVY-H003]: 2 of 32 hosts did not answer in 30 s\n"
            "  where: node[07,19], ssh connect\n"
            "  cause: Permission denied (publickey)\n"
            "         second line\n"
            "  fix:   ssh -o BatchMode=yes node07 true\n"
            "         --nnodes 30\n");
}

TEST(DiagnosticTest, OmitsTheLinesOfEmptyFields) {
  Diagnostic diagnostic;
  diagnostic.severity = Severity::kNote;
  diagnostic.what = "hello";
  EXPECT_EQ(render(diagnostic), "ivyrun: note: hello\n");
  diagnostic.severity = Severity::kWarning;
  diagnostic.cause = "\n";
  EXPECT_EQ(render(diagnostic), "ivyrun: warning: hello\n");
}

TEST(DiagnosticTest, EscapesControlsInForeignText) {
  Diagnostic diagnostic;
  diagnostic.what = "two\nlines";
  diagnostic.cause = "\x1b]0;title\x07 and \x1b[2J\rover";
  EXPECT_EQ(render(diagnostic),
            "ivyrun: error: two\\x0Alines\n"
            "  cause: \\x1B]0;title\\x07 and \\x1B[2J\\x0Dover\n");
}

TEST(EscapeControlTest, KeepsTextAndNewlines) {
  EXPECT_EQ(escape_control("gr\xc3\xbc\xc3\x9f\n\t"), "gr\xc3\xbc\xc3\x9f\n\\x09");
  EXPECT_EQ(escape_control(std::string("\0\x7f", 2)), "\\x00\\x7F");
  // CSI as one C1 character in UTF-8. The U+00A0 after it is text.
  EXPECT_EQ(escape_control("\xc2\x9b"
                           "2J\xc2\xa0"),
            "\\xC2\\x9B2J\xc2\xa0");
  EXPECT_EQ(escape_control("\xc2"), "\xc2");
  // The same as a single byte, next to characters whose encoding contains such a byte.
  EXPECT_EQ(escape_control("\x9b"
                           "2J\xc4\x9d\xe2\x96\x88\xe9"),
            "\\x9B2J\xc4\x9d\xe2\x96\x88\xe9");
}

TEST(MissingLibraryTest, IsRecognizedInTheLastLine) {
  const std::string line =
      "./hello: error while loading shared libraries: libmpich.so.12: cannot open shared object "
      "file: No such file or directory";
  for (const char* end : {"", "\n"})
    EXPECT_NE(missing_library_text("start\n" + line + end, {}).find("library libmpich.so.12"),
              std::string::npos);
  EXPECT_EQ(missing_library_text(line + "\nwithout it\n", {}), "");
}

}  // namespace
}  // namespace ivy
