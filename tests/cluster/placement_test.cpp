// Where processes go, the words each launcher gets, and what becomes of a run whose hosts are lost.
#include "launch/placement.h"

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cuboid/core/error.h"
#include "cuboid/formats/hf_config.h"

#include "launch/elastic.h"

namespace cuboid::launch {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

Grid grid(int tp, int dp, int pp, const std::string& order = std::string(Grid::kDefaultOrder)) {
  AxisValues degrees{{1, 1, 1, 1, 1}};
  degrees[Axis::tp] = tp;
  degrees[Axis::dp] = dp;
  degrees[Axis::pp] = pp;
  return Grid(degrees, order);
}

TEST(Placement, TensorGroupsStayInAHost) {
  // Three slots hold one pair each; filling them up would cut every second pair.
  const Placement placed = place(grid(2, 3, 1), 1, {{"a", 3}, {"b", 3}, {"c", 2}});
  EXPECT_THAT(placed.host_of_process, ElementsAre(0, 0, 1, 1, 2, 2));
  EXPECT_THAT(placed.notes, IsEmpty());
}

TEST(Placement, AlsoWhereTensorRanksAreNotNeighbours) {
  // With dp fastest, the tensor parallel groups are ranks {0, 2} and {1, 3}.
  const Placement placed = place(grid(2, 2, 1, "dp-tp-cp-ep-pp"), 1, {{"a", 2}, {"b", 2}});
  EXPECT_THAT(placed.host_of_process, ElementsAre(0, 1, 0, 1));
  EXPECT_FALSE(placed.in_blocks());
}

TEST(Placement, SaysWhatDoesNotFit) {
  const Placement placed = place(grid(4, 1, 1), 1, {{"a", 3}, {"b", 2}});
  EXPECT_THAT(placed.host_of_process, ElementsAre(0, 0, 0, 1));
  ASSERT_EQ(placed.notes.size(), 1U);
  EXPECT_THAT(placed.notes[0], AllOf(HasSubstr("0, 1, 2, 3"), HasSubstr("does not fit in one host")));
}

TEST(Placement, RanksOfAProcess) {
  EXPECT_THAT(place(grid(2, 2, 2), 4, {{"a", 1}, {"b", 1}}).host_of_process, ElementsAre(0, 1));
  EXPECT_THROW(place(grid(2, 3, 1), 4, {{"a", 8}}), Error);
}

TEST(Placement, TooFewSlotsAreRefusedWithBothNumbers) {
  try {
    place(grid(3, 3, 1), 1, {{"a", 4}, {"b", 4}, {"c", 0}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("9 processes"), HasSubstr("8 slots")));
  }
}

LaunchForm form(const Grid& g, const std::vector<Host>& hosts) {
  LaunchForm made;
  made.placement = place(g, 1, hosts);
  made.command = {"/opt/cuboid", "train", "--data", "it's here"};
  return made;
}

TEST(Forms, Mpirun) {
  LaunchForm made = form(grid(2, 2, 1), {{"a", 3}, {"b", 2}});
  EXPECT_EQ(rank_file(made), "rank 0=a slot=*\nrank 1=a slot=*\nrank 2=b slot=*\nrank 3=b slot=*\n");
  made.cores_per_process = 4;
  EXPECT_EQ(rank_file(made), "rank 0=a slot=0-3\nrank 1=a slot=4-7\nrank 2=b slot=0-3\nrank 3=b slot=4-7\n");
  const auto words = mpirun_words(made, "r.txt");
  EXPECT_THAT(words, testing::Contains("a:2,b:2"));
  EXPECT_EQ(quoted(words.back()), "'it'\\''s here'");
}

TEST(Forms, Sbatch) {
  const std::string even = sbatch_script(form(grid(2, 2, 1), {{"a", 2}, {"b", 2}}));
  EXPECT_THAT(even, AllOf(HasSubstr("#SBATCH --nodes=2\n"), HasSubstr("#SBATCH --nodelist=a,b\n"),
                          HasSubstr("#SBATCH --ntasks-per-node=2\n"), HasSubstr("srun --mpi=pmix"),
                          HasSubstr("--distribution=block /opt/cuboid train --data 'it'\\''s here'\n")));
  const std::string uneven = sbatch_script(form(grid(1, 3, 1), {{"a", 2}, {"b", 2}}));
  EXPECT_THAT(uneven, AllOf(HasSubstr("END'\na\na\nb\nEND\n"), HasSubstr("--distribution=arbitrary"),
                            Not(HasSubstr("--ntasks-per-node"))));
}

TEST(Forms, Kubernetes) {
  const std::string job = mpi_job(form(grid(2, 2, 1), {{"a", 2}, {"b", 2}}), "registry/cuboid:1");
  EXPECT_THAT(job, AllOf(HasSubstr("kind: MPIJob"), HasSubstr("slotsPerWorker: 2"), HasSubstr("replicas: 2"),
                         HasSubstr("- 'it''s here'\n"), HasSubstr("image: registry/cuboid:1")));
  EXPECT_THROW(mpi_job(form(grid(1, 3, 1), {{"a", 2}, {"b", 2}}), "x"), Error);
}

// 8 sequences a step in micro-batches of 1; 4 heads; 4 layers.
TEST(Elastic, TheLargestGridForTheSlotsThatAreLeft) {
  RunConfig run;
  run.model = CUBOID_TEST_DATA "/oracle/gpt2-tiny";
  run.data.paths = {"tokens"};
  run.seq_len = 16;
  const ModelConfig model = load_model(run.model);
  const auto degrees = [&](const std::optional<Grid>& grid) {
    std::string text;
    for (const Axis axis : {Axis::tp, Axis::pp, Axis::dp}) text += std::to_string(grid->degree(axis)) + " ";
    return text;
  };
  run.grid = Grid({{2, 1, 1, 2, 2}}, "pp-tp-cp-ep-dp");
  EXPECT_EQ(degrees(largest_grid(run, model, 1, 9)), "2 2 2 ");
  EXPECT_EQ(degrees(largest_grid(run, model, 1, 7)), "2 2 1 ") << "what a rank holds grows least";
  EXPECT_EQ(degrees(largest_grid(run, model, 1, 3)), "2 1 1 ");
  EXPECT_EQ(degrees(largest_grid(run, model, 1, 1)), "1 1 1 ");
  EXPECT_EQ(largest_grid(run, model, 1, 4)->order(), "pp-tp-cp-ep-dp");
  EXPECT_EQ(degrees(largest_grid(run, model, 4, 1)), "2 2 1 ") << "four ranks a process";
  EXPECT_FALSE(largest_grid(run, model, 4, 0));
  run.grid = Grid({{1, 1, 1, 8, 1}}, Grid::kDefaultOrder);
  EXPECT_EQ(degrees(largest_grid(run, model, 1, 7)), "1 1 4 ")
      << "the global batch of 8 divides by 4 and not by 5, 6, 7";
  run.grid = Grid({{1, 4, 1, 2, 1}}, Grid::kDefaultOrder);
  EXPECT_EQ(largest_grid(run, model, 1, 7)->degree(Axis::cp), 4);
  EXPECT_EQ(largest_grid(run, model, 1, 3)->degree(Axis::cp), 2) << "4 ranks are too many, and 3 are no divisor";
  // Two pipeline ranks hold half each; one alone would pass the limit.
  run.grid = Grid({{1, 1, 1, 1, 2}}, Grid::kDefaultOrder);
  run.memory_limit = 3 << 20;
  EXPECT_TRUE(largest_grid(run, model, 1, 2));
  EXPECT_FALSE(largest_grid(run, model, 1, 1));
}

TEST(Elastic, DegreesAreReplacedHoweverTheyWereGiven) {
  const Grid grid({{2, 1, 1, 3, 1}}, Grid::kDefaultOrder);
  EXPECT_THAT(on_grid({"cuboid", "train", "--dp", "4", "--tp=2", "--lr", "0.1", "--dp-like"}, grid),
              testing::ElementsAre("cuboid", "train", "--lr", "0.1", "--dp-like", "--tp", "2", "--cp", "1", "--ep", "1",
                                   "--dp", "3", "--pp", "1"));
}

TEST(Elastic, HostsThatDoNotAnswerAreLeftOut) {
  setenv("OMPI_MCA_plm_rsh_agent", "sh -c 'test $0 != gone' : ssh", 1);
  EXPECT_THAT(answering({{"there", 2}, {"gone", 3}, {"localhost", 4}}),
              testing::ElementsAre(Host{"there", 2}, Host{"localhost", 4}));
  unsetenv("OMPI_MCA_plm_rsh_agent");
}

}  // namespace
}  // namespace cuboid::launch
