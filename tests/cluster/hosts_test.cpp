// Host lists, host files, rank files and Slurm's variables, as users have them.
#include "launch/hosts.h"

#include <fstream>
#include <map>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuboid/core/error.h"

#include "formats/files.h"

namespace cuboid::launch {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kCases = CUBOID_TEST_DATA "/cases";

template <typename F>
std::string refusal(F&& read) {
  try {
    read();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::request);
    return error.what();
  }
  ADD_FAILURE() << "it was read";
  return "";
}

TEST(HostLists, AsSlurmReadsThem) {
  std::ifstream file(kCases + "/slurm/hostlists.tsv");
  ASSERT_TRUE(file);
  int read = 0;
  int refused = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream fields(line);
    std::string list, kind, count, names;
    std::getline(fields, list, '\t');
    std::getline(fields, kind, '\t');
    std::getline(fields, count, '\t');
    std::getline(fields, names, '\t');
    if (kind != "ok") {
      EXPECT_THAT(refusal([&] { expand_host_list(list); }), HasSubstr("'" + list + "'")) << names;
      ++refused;
      continue;
    }
    std::string got;
    for (const auto& name : expand_host_list(list)) got += (got.empty() ? "" : " ") + name;
    EXPECT_EQ(got, names) << list;
    ++read;
  }
  EXPECT_EQ(read, 12);
  EXPECT_EQ(refused, 6);
}

TEST(HostLists, MixedListsAndSeveralBrackets) {
  EXPECT_THAT(expand_host_list("nodeA,nodeB[001,003],nodeC"), ElementsAre("nodeA", "nodeB001", "nodeB003", "nodeC"));
  EXPECT_THAT(expand_host_list("r[1-2]n[1-2]"), ElementsAre("r1n1", "r1n2", "r2n1", "r2n2"));
  EXPECT_THAT(refusal([] { expand_host_list("n[1-2]x"); }), HasSubstr("'x' after the last bracket"));
  EXPECT_THAT(refusal([] { expand_host_list("n[1-3],n2"); }), HasSubstr("n2 is named twice"));
  EXPECT_THAT(refusal([] { expand_host_list("n[0-99999999]"); }), HasSubstr("too long"));
  // Long in sum, and long in digits.
  std::string ranges = "0-199999";
  for (int i = 0; i < 99; ++i) ranges += ",0-199999";
  EXPECT_THAT(refusal([&] { expand_host_list("n[" + ranges + "]"); }), HasSubstr("too long"));
  EXPECT_THAT(refusal([&] { expand_host_list("n[0-199999],m[0-199999]"); }), HasSubstr("too many hosts"));
  EXPECT_THAT(refusal([] { expand_host_list("n[" + std::string(900, '0') + "-99999]"); }),
              HasSubstr("too many digits"));
  EXPECT_THAT(refusal([] { expand_host_list(""); }), HasSubstr("empty item"));
  EXPECT_THAT(refusal([] { expand_host_list("a b"); }), HasSubstr("' ' cannot be"));
}

TEST(Counts, TasksPerNode) {
  EXPECT_THAT(expand_counts("2(x2),1"), ElementsAre(2, 2, 1));
  EXPECT_THAT(expand_counts("7"), ElementsAre(7));
  for (const char* bad : {"", "2(x", "2(x0)", "x2", "2,,1", "-1", "1(x200000),1(x200000)"})
    refusal([&] { expand_counts(bad); });
}

TEST(HostFiles, SlotsAndComments) {
  EXPECT_THAT(read_host_file(kCases + "/mpi/hostfile-slots.txt"),
              ElementsAre(Host{"node01", 4}, Host{"node02", 4}, Host{"node03", 0}));
  EXPECT_THAT(refusal([] { read_host_file(kCases + "/mpi/hostfile-bad-mixed.txt"); }),
              AllOf(HasSubstr("hostfile-bad-mixed.txt: line 2"), HasSubstr("node01"), HasSubstr("ambiguous")));
  EXPECT_THAT(refusal([] { read_host_file("/nowhere/hosts"); }), HasSubstr("/nowhere/hosts"));
}

TEST(RankFiles, SocketsAndCores) {
  EXPECT_THAT(read_rank_file(kCases + "/mpi/rankfile-ok.txt"),
              ElementsAre(RankPlace{"node01", 0, {0}}, RankPlace{"node01", 1, {0}}, RankPlace{"node02", 0, {0, 1}},
                          RankPlace{"node02", 1, {2, 3}}));
  EXPECT_THAT(refusal([] { read_rank_file(kCases + "/mpi/rankfile-bad-dup-rank.txt"); }),
              AllOf(HasSubstr("line 3"), HasSubstr("rank 1 is placed twice")));
}

TEST(RankFiles, GapsAreNamedInAFewWords) {
  const test::TemporaryFolder folder;
  const std::string path = folder / "ranks.txt";
  std::ofstream(path) << "rank 1=n slot=0\nrank 2=n slot=1\nrank 2147483647=n slot=2\n";
  const std::string why = refusal([&] { read_rank_file(path); });
  EXPECT_THAT(why, AllOf(HasSubstr("rank 0 is not placed"), HasSubstr("ranks 3 to 2147483646 are not placed")));
  EXPECT_LT(why.size(), 4 * path.size() + 100);
}

class Slurm : public testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file(kCases + "/slurm/env-uneven-5tasks.env");
    for (std::string line; std::getline(file, line);) {
      variables_[line.substr(0, line.find('='))] = line.substr(line.find('=') + 1);
    }
    ASSERT_GE(variables_.size(), 10U);
  }
  SlurmJob read() {
    return read_slurm([this](const char* name) {
      const auto found = variables_.find(name);
      return found == variables_.end() ? std::string() : found->second;
    });
  }
  std::map<std::string, std::string> variables_;
};

TEST_F(Slurm, UnevenTasks) {
  const SlurmJob job = read();
  EXPECT_THAT(job.hosts, ElementsAre(Host{"dgx08", 2}, Host{"dgx09", 2}, Host{"dgx10", 1}));
  EXPECT_EQ(job.tasks, 5);
  EXPECT_THAT(job.host_of_rank(), ElementsAre(0, 0, 1, 1, 2));
  EXPECT_EQ(job.rank, 3);
  EXPECT_EQ(job.local_rank, 1);
  EXPECT_EQ(job.node, 1);
}

TEST_F(Slurm, ContradictionsAreNamed) {
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"SLURM_NTASKS", "6"},
      {"SLURM_JOB_NUM_NODES", "2"},
      {"SLURM_STEP_TASKS_PER_NODE", "2(x3)"},
      {"SLURM_PROCID", "5"},
      {"SLURM_LOCALID", "2"},
      {"SLURM_NODEID", "3"},
      {"SLURMD_NODENAME", "dgx08"},
      {"SLURM_NODELIST", "dgx08"},
      {"SLURM_STEP_TASKS_PER_NODE", "2(x2),one"},
      {"SLURM_STEP_TASKS_PER_NODE", "262144(x9000)"},  // 2359296000 tasks: more than an int
  };
  for (const auto& [name, value] : wrong) {
    const auto kept = variables_;
    variables_[name] = value;
    EXPECT_THAT(refusal([&] { read(); }), HasSubstr(name == "SLURM_STEP_TASKS_PER_NODE" ? value : name + "=" + value));
    variables_ = kept;
  }
}

TEST_F(Slurm, AMissingVariableIsNamedNotGuessed) {
  variables_.erase("SLURM_NTASKS");
  variables_.erase("SLURM_NPROCS");
  variables_.erase("SLURM_JOB_NODELIST");
  variables_.erase("SLURM_NODELIST");
  EXPECT_THAT(refusal([&] { read(); }),
              AllOf(HasSubstr("SLURM_NTASKS is not set"), HasSubstr("SLURM_JOB_NODELIST is not set")));
}

}  // namespace
}  // namespace cuboid::launch
